package node

import (
	"context"
	"io"
)

// CloseWhenDone closes c if ctx ends before stop is called, so that what blocks in it returns.
func CloseWhenDone(ctx context.Context, c io.Closer) (stop func() bool) {
	return context.AfterFunc(ctx, func() { _ = c.Close() })
}

// Cause is why a blocking call failed: the end of ctx, which closed what it blocked in, or else err.
func Cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}
