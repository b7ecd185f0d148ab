package rdmatransport

import (
	"context"
	"errors"
	"time"

	"github.com/softrnic/softrnic/verbs"
)

// shutdownTimeout is how long Shutdown waits for the peers of streams. Drain of the connection
// manager has its own timeout.
const shutdownTimeout = 2 * time.Second

// Shutdown implements verbs.Provider. It waits at most two seconds for a peer's answer. While a
// port's shared hub is gone, its peers cannot answer, and Shutdown waits for them until ctx ends.
func (p *provider) Shutdown(ctx context.Context) error {
	p.notify(verbs.EventDeviceFatal, 0)
	if p.allRemoved() {
		return nil // no answer can arrive
	}
	short, cancel := p.timers.Clock().WithTimeout(ctx, shutdownTimeout)
	defer cancel()
	streams := make(chan error, 1) // in parallel, so that neither uses up the time of the other
	go func() { streams <- p.iwarp.Drain(short) }()
	return errors.Join(p.cm.Drain(ctx), <-streams, p.traced.drain(ctx))
}
