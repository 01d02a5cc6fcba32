"""Visual commonsense reasoning asks about pictures: ``texts`` builds its rows as published."""
