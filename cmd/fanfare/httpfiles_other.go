//go:build !unix

package main

// openFileLimit is how many files the process may open: nobody says.
func openFileLimit() (files int, known bool) { return 0, false }
