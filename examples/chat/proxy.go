package main

import (
	_ "embed"
	"os"
	"path/filepath"
	"regexp"
	"text/template"
)

//go:embed nginx.conf
var nginxConf string

// proxyConfig is what nginx.conf is filled with.
type proxyConfig struct {
	// Place is a directory for nginx, Locations the path of fanfare-streams.conf.
	Place, Locations string
	// Site is where the chat is, Host the same without the port, and Control what kills
	// replicas.
	Site, Host, Control string
	Replicas            []proxyReplica
	Servers             []string
}

type proxyReplica struct{ Name, HTTP string }

// write writes the configuration and returns its path.
func (c proxyConfig) write() (string, error) {
	t, err := template.New("nginx.conf").Funcs(template.FuncMap{"regexp": regexp.QuoteMeta}).Parse(nginxConf)
	if err != nil {
		return "", err
	}
	// The user whom nginx serves as must be able to enter the directory.
	if err := os.Chmod(c.Place, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(c.Place, "nginx.conf")
	file, err := os.Create(path)
	if err != nil {
		return "", err
	}
	if err := t.Execute(file, c); err != nil {
		file.Close()
		return "", err
	}
	return path, file.Close()
}
