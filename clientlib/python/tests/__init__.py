import faulthandler
import logging

# A test that waits for ever ends the run, and shows where it waits.
faulthandler.dump_traceback_later(300, exit=True)

# What the client warns of is what the tests provoke.
logging.getLogger("fanfare").addHandler(logging.NullHandler())
# Starting and ending servers holds up the event loop, in tests.
logging.getLogger("asyncio").setLevel(logging.ERROR)
