//go:build !linux

package run

import (
	"errors"

	"github.com/softrnic/softrnic/cmd/internal/cli"
)

// Run returns an error.
func (c *Command) Run(*cli.Env) error {
	_ = c.environment
	return errors.New("the drop-in libraries are for Linux only")
}
