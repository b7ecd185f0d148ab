//go:build !linux

package packet

import (
	"fmt"
	"runtime"
)

func open(c *config) (*Link, error) {
	return nil, fmt.Errorf("packet %s: packet sockets are Linux's and this is %s: use package tap or pipe", c.name, runtime.GOOS)
}
