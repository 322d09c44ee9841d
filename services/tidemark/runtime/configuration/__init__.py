# SPDX-License-Identifier: Apache-2.0
"""Settings of services, topics and groups: the table of all keys, the classes that parse values, described entries."""
