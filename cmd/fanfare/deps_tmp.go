package main

import (
	_ "github.com/fatih/color"
	_ "github.com/schollz/progressbar/v3"
	_ "golang.org/x/term"
	_ "github.com/fanfare-io/fanfare/backlog/sqlitebacklog"
)
