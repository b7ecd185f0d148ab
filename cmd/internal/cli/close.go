package cli

import "io"

// Close closes c, unless it is nil because its creation has failed or was never reached.
func Close[C interface {
	comparable
	io.Closer
}](c C) error {
	var none C
	if c == none {
		return nil
	}
	return c.Close()
}
