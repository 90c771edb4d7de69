import logging

# What the client warns of is what the tests provoke.
logging.getLogger("fanfare").addHandler(logging.NullHandler())
