# SPDX-License-Identifier: Apache-2.0
"""Opening a log after a stop or a kill: recovery, and the small files that it starts from."""
