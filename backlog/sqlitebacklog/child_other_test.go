//go:build !unix

package sqlitebacklog

import "errors"

func dropRights() error { return errors.New("on this system there is no user to become") }
