package pgbacklog

// Check checks what needs no server: the form of the URL, the schema's name and
// the bounds. Open checks the same.
func (c Config) Check() error {
	c = c.withDefaults()
	if err := c.validate(); err != nil {
		return err
	}
	_, err := c.poolConfig("", 1)
	return err
}
