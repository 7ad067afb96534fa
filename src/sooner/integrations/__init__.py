"""sooner inside other people's software, each in files of its own that nothing imports before it is asked for."""
