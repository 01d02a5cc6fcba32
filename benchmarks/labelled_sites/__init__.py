"""Sites whose images a person has judged: reading, counting, fitting the choice's weights."""
