"""Between domain objects and protobuf messages: a module for each proto file, both ways together.

Readers check the shape of a message, and domain objects their own bounds. SECURITY.md says where
all other limits are checked.
"""
