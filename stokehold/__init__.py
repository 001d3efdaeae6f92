"""What users import and type: the SDK and the command line. Speaks HTTP; imports no other package of ours."""

__version__ = "0.1.0"
