"""Steps of a chain in compiled code, whose sources lie in `bdl/samplers/c`."""
