"""The live page: history of the fleet and the stream of frames."""
