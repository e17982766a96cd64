"""Models over HTTP: a folder on disk becomes a service that answers many clients at once.

In: the settings (settings.py) and requests in any of the wire formats of protocols/. Out: answers that don't
depend on their neighbours, or a refusal (refusals.py) that says why there is none.

    app.py → admission.py → protocols/ → service.py → operations/ → queue.py → workers.py → answer

Read service.py first, which follows a request from end to end without HTTP, then app.py. models.py opens,
tries and replaces models; monitoring.py is what an operator sees; serve.py is `bertsmith serve`. The mirror,
a package of its own, shares with this only how a server runs and who gets in.
"""

import logging

LOG = logging.getLogger(__name__)
