package node

import (
	"context"
	"io"
	"net"
)

// CloseWhenDone closes c if ctx ends before stop is called, so that blocked calls of c return.
func CloseWhenDone(ctx context.Context, c io.Closer) (stop func() bool) {
	return context.AfterFunc(ctx, func() { _ = c.Close() })
}

// Cause returns the error of a call that CloseWhenDone may have ended: the error of ctx if it has
// ended, and else err.
func Cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// Conn returns a nil net.Conn on an error, not one that holds a nil pointer.
func Conn[C net.Conn](c C, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	return c, nil
}
