//go:build !linux

package sse

import (
	"net"
	"time"
)

func breakUnacknowledged(*net.TCPConn, time.Duration) {}
