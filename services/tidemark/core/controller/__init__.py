# SPDX-License-Identifier: Apache-2.0
"""The controller as a state machine: elections, topics, reassignments, controlled shutdown. Pure."""
