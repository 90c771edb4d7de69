package failover

import (
	"strings"
	"testing"
)

func TestConfigurationsThatCannotWork(t *testing.T) {
	const hub, database = "unix:///run/fanfare/fanfare.sock", "postgres://h/d"
	for name, test := range map[string]struct {
		config Config
		says   string
	}{
		"no hub":             {Config{Database: database}, "neither unix:///PATH nor host:port"},
		"no database":        {Config{Hub: hub}, "automatic needs a Database"},
		"no database at all": {Config{Mode: OwnOnly}, "own only needs a Database"},
		"relative socket":    {Config{Hub: "unix://run/f.sock", Database: database}, "absolute path"},
		"gRPC's form":        {Config{Hub: "unix:/run/f.sock", Database: database}, "is not unix:///PATH"},
		"mode":               {Config{Hub: hub, Database: database, Mode: 3}, "there is no mode 3"},
		"timeout":            {Config{Hub: hub, Database: database, AckTimeout: -1}, "must not be negative"},
		"schema":             {Config{Hub: hub, Database: database, Schema: "pg_x"}, "reserved"},
		"database":           {Config{Hub: hub, Database: "postgres://h:x/d"}, "cannot be parsed"},
		"listen database":    {Config{Hub: hub, Database: database, ListenDatabase: "postgres://h:x/d"}, "cannot be parsed"},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := New(test.config)
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("New: %v", err)
			}
			if err == nil {
				c.Close()
			}
		})
	}
}

func TestConfigurationsThatCanWork(t *testing.T) {
	const hub, database = "unix:///run/fanfare/fanfare.sock", "postgres://h/d"
	for name, config := range map[string]Config{
		"automatic":   {Hub: hub, Database: database},
		"hub only":    {Hub: hub, Mode: HubOnly},
		"own only":    {Database: database, Mode: OwnOnly},
		"on loopback": {Hub: "127.0.0.1:7420", Database: database},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := New(config)
			if err != nil {
				t.Fatal(err)
			}
			if c.UsesHub() == (config.Mode == OwnOnly) {
				t.Errorf("before the first call: %+v", c.State())
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
