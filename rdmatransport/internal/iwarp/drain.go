package iwarp

import (
	"context"
	"fmt"
)

// Drain waits until every stream has ended. Each must have been closed from this side; it ends when
// the peer has closed it too, or the time for that is over. The error is that of ctx, if it ends
// first.
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
