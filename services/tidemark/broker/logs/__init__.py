# SPDX-License-Identifier: Apache-2.0
"""Work on logs outside the event loop: appends, flushes, recovery, retention, cleaning, log directory moves."""
