// Package clientlib publishes frames to a Fanfare server and subscribes to streams.
package clientlib
