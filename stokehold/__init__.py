"""What users import and type: the SDK and the command line. Speaks HTTP; imports no other package of ours."""
