# SPDX-License-Identifier: Apache-2.0
"""The only package that imports kazoo: znode paths and codecs, session, election, multis."""
