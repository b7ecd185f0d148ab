//go:build !linux

package conform

import (
	"context"
	"errors"

	"github.com/softrnic/softrnic/cmd/internal/cli"
)

var errNoNamespaces = errors.New("--netns needs Linux")

func inNamespace(context.Context, *cli.Env) error { return errNoNamespaces }

func (c *Command) withTarget() (stop func(), err error) { return nil, errNoNamespaces }
