//go:build !linux

package fault

import (
	"context"
	"errors"
	"fmt"

	"github.com/softrnic/softrnic/cmd/internal/cli"
)

func (*Command) sweep(context.Context, *cli.Env) error {
	return fmt.Errorf("--sweep: softrnic run works on Linux only: %w", errors.ErrUnsupported)
}
