package iwarptransport

import (
	"context"
	"fmt"
)

// Drain waits until every stream has ended. All of them must be closed on this side. A stream ends
// when the peer has closed it too, or after lingerTimeout. If ctx ends first, Drain returns its
// error.
func (e *Engine) Drain(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		e.work.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("peers have not closed their streams: %w", ctx.Err())
	}
}
