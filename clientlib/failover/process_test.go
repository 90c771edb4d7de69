package failover_test

// binaryDir is where tests build the program. It is removed at their end.
var binaryDir string
