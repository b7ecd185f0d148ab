package rdmacm_test

import (
	"context"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// After a failure, ResolveAddr can be called again with the same source.
func TestResolveAddrAgain(t *testing.T) {
	bubble(t, func(t *testing.T, a, b *end) {
		for _, src := range []string{v4B + ":0", v4B + ":7000"} {
			id := b.id(rdmacm.TCP)
			resolve := func() error {
				return id.ResolveAddr(netip.MustParseAddrPort(src), netip.MustParseAddrPort(v4A+":7471"), time.Second)
			}
			b.fake.route = syscall.ENETUNREACH
			wantErr(t, resolve(), syscall.ENETUNREACH)
			b.fake.route = nil
			b.fake.resolve = func(ctx context.Context, _ rdmacm.Route) error { <-ctx.Done(); return ctx.Err() }
			must(t, resolve())
			b.next(rdmacm.AddrError)
			wantErr(t, id.ResolveAddr(netip.MustParseAddrPort(v4B+":7001"), netip.MustParseAddrPort(v4A+":7471"), 0), syscall.EINVAL)
			b.fake.resolve = nil
			must(t, resolve())
			b.next(rdmacm.AddrResolved)
			must(t, id.Close())
		}
	})
}
