"""Holds the files of the page that every service has, which loads nothing from other servers.

Reading order: ``index.html``, ``page.css`` (after ``console/base.css``, which reports share),
``api.js`` (requests and messages), ``rows.js`` (decodes rows of regions), ``boxes.js`` (draws
them), ``photo.js`` (the chosen image), ``regions.js``, ``search.js``, ``tasks.js`` and
``table.js`` (what each service offers), and ``main.js``. ``files`` lists them for the service.
"""
