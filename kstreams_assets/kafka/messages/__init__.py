"""Requests that kafka-python does not have; it reads their fields from the JSON files beside this.

The names are those of Kafka's protocol. Field by field: KIP-1071 (StreamsGroupDescribe).
"""

import sys

from kafka.protocol.api_message import ApiMessage

_HERE = sys.modules[__name__]


class StreamsGroupDescribeRequest(ApiMessage, load_json=_HERE):
    """Asks the coordinator for members and tasks of groups of the protocol `streams`."""


class StreamsGroupDescribeResponse(ApiMessage, load_json=_HERE):
    """Members with their tasks, and the topics that each sub-topology reads."""
