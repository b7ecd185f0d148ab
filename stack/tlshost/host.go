// Package tlshost is a host whose TCP connections are TLS 1.3 connections (RFC 8446), for iWARP
// with peers that have TLS in front of their port: another such host, or a proxy such as stunnel.
//
//	config := &tls.Config{Certificates: own, RootCAs: authorities}
//	host, err := tlshost.New(sockets, &tlshost.Config{TLS: config})
//
// TLS does not protect datagrams and frames, so the host has neither: RoCE returns an error instead
// of sending in clear.
package tlshost

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/softrnic/softrnic/link/clock"
	"github.com/softrnic/softrnic/stack"
)

// Stack is a network stack that can be closed.
type Stack interface {
	stack.Network
	Close() error
}

// Config configures a host.
type Config struct {
	// TLS is the configuration of both roles. To listen, it needs a certificate. A listener
	// verifies clients as ClientAuth and ClientCAs say. A client verifies the certificate of a
	// server for ServerName, or for the address that it dials if that is "". Versions before
	// TLS 1.3 and tickets are disabled. GetConfigForClient must be nil, since its configurations
	// would replace this one.
	TLS *tls.Config
	// Admit, if not nil, decides whether there may be a connection with a peer, after its
	// certificate was verified. cert is nil if the peer has none. Any goroutine may call it.
	Admit func(peer netip.Addr, cert *x509.Certificate) bool
	// Logger gets a warning for each connection that could not be dialed because of TLS, and
	// information about refused ones. Nil: none.
	Logger *slog.Logger
}

// Host is a stack whose streams are TLS connections.
type Host struct {
	Stack
	cfg   Config
	nics  []stack.NIC
	clock clock.Clock

	refused, displaced atomic.Uint64

	mu     sync.Mutex
	closed bool
	open   map[*stream]struct{}
}

var (
	_ stack.FamilyListener = (*Host)(nil)
	_ stack.Clocked        = (*Host)(nil)
)

// New returns a host on s, which it owns: Close closes s. If New fails, it closes s.
func New(s Stack, cfg *Config) (*Host, error) {
	if cfg == nil || cfg.TLS == nil {
		return nil, errors.Join(errors.New("tlshost: Config.TLS is missing"), s.Close())
	}
	if cfg.TLS.GetConfigForClient != nil {
		return nil, errors.Join(errors.New("tlshost: Config.TLS.GetConfigForClient: must be nil"), s.Close())
	}
	h := &Host{Stack: s, cfg: *cfg, clock: stack.ClockOf(s), open: map[*stream]struct{}{}}
	if h.cfg.Logger == nil {
		h.cfg.Logger = slog.New(slog.DiscardHandler)
	}
	h.cfg.TLS = cfg.TLS.Clone()
	h.cfg.TLS.MinVersion, h.cfg.TLS.MaxVersion = tls.VersionTLS13, tls.VersionTLS13
	if h.cfg.TLS.Time == nil {
		h.cfg.TLS.Time = h.clock.Now
	}
	// Without resumption, the identity of a peer is verified for each connection.
	h.cfg.TLS.SessionTicketsDisabled, h.cfg.TLS.ClientSessionCache = true, nil
	// The pieces of a stream are messages, so that short records would not make them faster.
	h.cfg.TLS.DynamicRecordSizingDisabled = true
	for _, n := range s.NICs() {
		h.nics = append(h.nics, &nic{n})
	}
	return h, nil
}

// nic is an interface that carries streams only.
type nic struct{ stack.NIC }

// Datagrams implements [stack.NIC].
func (*nic) Datagrams() stack.DatagramPort { return nil }

// Frames implements [stack.NIC].
func (*nic) Frames() stack.FramePort { return nil }

// NICs implements [stack.Network].
func (h *Host) NICs() []stack.NIC { return slices.Clone(h.nics) }

// Clock implements [stack.Clocked].
func (h *Host) Clock() clock.Clock { return h.clock }

// Refused returns the number of accepted TCP connections that were closed because TLS was not set
// up: the handshake failed or took too long, there were too many, or Config.Admit refused the peer.
func (h *Host) Refused() uint64 { return h.refused.Load() }

// Displaced returns the number of those that were ended for newer ones, as there were too many.
func (h *Host) Displaced() uint64 { return h.displaced.Load() }

// Close closes the stack, and resets open connections.
func (h *Host) Close() error {
	h.mu.Lock()
	h.closed = true
	streams := slices.Collect(maps.Keys(h.open))
	h.mu.Unlock()
	for _, s := range streams {
		s.Abort()
	}
	return h.Stack.Close()
}

// errNotAdmitted ends the handshake with a peer that Config.Admit refuses.
var errNotAdmitted = fmt.Errorf("the peer's certificate is valid, but this peer is not allowed: %w", syscall.EACCES)

// config returns the configuration for a connection with a peer.
func (h *Host) config(peer netip.Addr) *tls.Config {
	c := h.cfg.TLS.Clone()
	if h.cfg.Admit == nil {
		return c
	}
	verify := c.VerifyConnection
	c.VerifyConnection = func(state tls.ConnectionState) error {
		if verify != nil {
			if err := verify(state); err != nil {
				return err
			}
		}
		if !peer.IsValid() || !h.cfg.Admit(peer.Unmap().WithZone(""), verified(&state)) {
			return errNotAdmitted
		}
		return nil
	}
	return c
}

// verified returns the peer's certificate, or nil if there is none that was verified.
func verified(state *tls.ConnectionState) *x509.Certificate {
	if len(state.VerifiedChains) == 0 || len(state.PeerCertificates) == 0 {
		return nil
	}
	return state.PeerCertificates[0]
}

// KeyHash returns the SHA-256 hash of a certificate's public key (SubjectPublicKeyInfo) in base64,
// as in RFC 7469.
func KeyHash(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return base64.StdEncoding.EncodeToString(sum[:])
}

// DialStream implements [stack.Network]. It returns after the handshake. The error of a failed
// handshake is that of crypto/tls.
//
// A server verifies the client's certificate after the client's handshake. If it refuses it, the
// first Wait or Read has the error.
func (h *Host) DialStream(ctx context.Context, laddr, raddr netip.AddrPort) (stack.Stream, error) {
	inner, err := h.Stack.DialStream(ctx, laddr, raddr)
	if err != nil {
		return nil, err
	}
	c := h.config(raddr.Addr())
	if c.ServerName == "" {
		c.ServerName = raddr.Addr().Unmap().WithZone("").String()
	}
	w := newWire(inner, h.clock)
	s, err := h.handshake(ctx, w, tls.Client(w, c))
	if err != nil {
		w.closeAfterAlert(0)
		if ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
			err = ctx.Err()
		}
		h.cfg.Logger.Warn("no TLS connection", "to", raddr, "error", err)
		return nil, fmt.Errorf("dial tls %v: %w", raddr, err)
	}
	return s, nil
}

// handshake makes a TLS connection a stream of the host. After an error, the caller closes the
// connection.
func (h *Host) handshake(ctx context.Context, w *wire, c *tls.Conn) (stack.Stream, error) {
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	w.handshaken()
	s := newStream(h, w, c)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		w.inner.Abort()
		return nil, errors.New("tlshost: the host is closed")
	}
	h.open[s] = struct{}{}
	if _, ok := w.inner.(stack.ReadNotifier); ok {
		return &notifyingStream{s}, nil
	}
	return s, nil
}

func (h *Host) untrack(s *stream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.open, s)
}
