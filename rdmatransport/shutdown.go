package rdmatransport

import (
	"context"
	"errors"

	"github.com/softrnic/softrnic/verbs"
)

// Shutdown implements verbs.Provider. A peer that does not answer for two seconds is not waited for any longer.
func (p *provider) Shutdown(ctx context.Context) error {
	p.tell(verbs.EventDeviceFatal, 0)
	if p.cutOff() {
		return nil // no answer can come
	}
	return errors.Join(p.cm.Drain(ctx), p.iwarp.Drain(ctx))
}
