package rdmatransport

import (
	"context"
	"errors"
	"time"

	"github.com/softrnic/softrnic/verbs"
)

// patience is how long Shutdown waits for the peers of streams. That for the others is Drain's of
// the connection manager.
const patience = 2 * time.Second

// Shutdown implements verbs.Provider. A peer that does not answer for two seconds is not waited for
// any longer. While a hub that a port shares is gone its peers cannot answer: they are waited for
// until ctx ends.
func (p *provider) Shutdown(ctx context.Context) error {
	p.tell(verbs.EventDeviceFatal, 0)
	if p.cutOff() {
		return nil // no answer can come
	}
	short, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	streams := make(chan error, 1) // beside the other: the one must not use up the time of the other
	go func() { streams <- p.iwarp.Drain(short) }()
	return errors.Join(p.cm.Drain(ctx), <-streams, p.traced.drain(ctx))
}
