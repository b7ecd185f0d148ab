package rdmatransport

import (
	"context"
	"errors"

	"github.com/softrnic/softrnic/verbs"
)

// Shutdown ends the device in order, so that no peer has to find out by itself: for a program that is about to exit,
// whatever it has left open. Connections are disconnected, those not yet set up are rejected or given up, listeners
// close, and every QP goes to ERR, which flushes what is posted; what must still arrive has to be complete before. IDs of
// rdma_cm get DeviceRemoval, and the device EventDeviceFatal, after which it takes no new connections.
//
// Then Shutdown waits until the peers know, or do not answer for two seconds, or ctx ends, whose error it returns. Objects
// of the device are still there to be destroyed; a program that does not care closes the host, and exits.
func (p *Provider) Shutdown(ctx context.Context) error {
	p.tell(verbs.EventDeviceFatal, 0)
	if p.cutOff() {
		return nil // no answer can come
	}
	if err := errors.Join(p.cm.Drain(ctx), p.iwarp.Drain(ctx)); err != nil {
		return &verbs.Error{Op: "shut down " + p.name, Detail: err.Error(), Err: err}
	}
	return nil
}
