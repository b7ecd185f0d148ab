package node

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"runtime"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/link/wireguard"

	"github.com/softrnic/softrnic/cmd/internal/cli"
)

// secureMedium is the medium of a node with --secure.
const secureMedium = "wireguard"

// Peer is a value of --peer.
type Peer struct{ wireguard.PeerConfig }

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *Peer) UnmarshalText(text []byte) (err error) {
	if p.PeerConfig, err = wireguard.ParsePeer(string(text)); err != nil {
		err = fmt.Errorf("%q: %w", text, err)
	}
	return err
}

// Medium returns the medium of the node's link: that of --link, or "wireguard".
func (f *Flags) Medium() string {
	if f.Secure != "" {
		return secureMedium
	}
	return f.Link.Medium
}

// checkSecure returns an error if flags contradict --secure.
func (f *Flags) checkSecure() error {
	switch {
	case f.Secure == "" && len(f.Peer) > 0:
		return cli.Usagef("--peer: only with --secure, which names the file with this node's private key (softrnic key makes one)")
	case f.Secure == "" && f.SecurePort != 0:
		return cli.Usagef("--secure-port: only with --secure")
	case f.Secure == "":
	case f.Link.Medium == "kernel" || f.Link.Medium == "shm":
		return cli.Usagef("--link %s: --secure uses this machine's UDP without --link, or Ethernet frames on --link stream, tap or packet",
			f.Link.Medium)
	case f.Link.vlan != 0 || f.Link.interfaceMAC:
		return cli.Usagef("--link %s: with --secure, it has no vlan= and no mac=", f.Link.Medium)
	case f.Congestion:
		return cli.Usagef("--congestion: with --secure, no switch sees or marks (ECN) the packets in the tunnel: " +
			"use --congestion-by-delay, which needs no marks")
	case f.MAC != nil:
		return cli.Usagef("--mac: with --secure, the MAC address is made from the key: leave it out")
	}
	return nil
}

// ReadSecret reads a file with a secret, which must be private to its owner.
func ReadSecret(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	switch {
	case err != nil:
		return "", err
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("%s: it is no regular file", file)
	case info.Mode().Perm()&0o077 != 0 && runtime.GOOS != "windows":
		return "", fmt.Errorf("%s: others may read or write it (mode %04o): use chmod 600", file, info.Mode().Perm())
	case info.Size() > maxSecret:
		return "", fmt.Errorf("%s: it has %d bytes, more than %d", file, info.Size(), maxSecret)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxSecret))
	return string(text), err
}

// maxSecret is the size of the largest configuration, in bytes.
const maxSecret = 16 << 20

// tunnelConfig returns the configuration of --secure.
func (f *Flags) tunnelConfig() (*wireguard.File, error) {
	text, err := ReadSecret(f.Secure)
	if err != nil {
		return nil, fmt.Errorf("--secure: %w", err)
	}
	c, err := wireguard.ParseFile(text)
	if err != nil {
		return nil, fmt.Errorf("--secure: %s: %w", f.Secure, err)
	}
	for _, p := range f.Peer {
		c.Peers = append(c.Peers, p.PeerConfig)
	}
	if len(c.Peers) == 0 {
		return nil, cli.Usagef("--secure %s: there is no peer: name its public key with --peer", f.Secure)
	}
	if f.SecurePort != 0 {
		c.Port = f.SecurePort
	}
	if f.MTU != 0 {
		c.MTU = f.MTU
	}
	return c, nil
}

// openTunnel opens the link of --secure. The node's addresses are those of --addr or of the file,
// and that of the key.
func (f *Flags) openTunnel(n *Node) (link.Link, error) {
	c, err := f.tunnelConfig()
	if err != nil {
		return nil, err
	}
	c.Logger = n.Log
	key := c.PrivateKey.Public()
	if len(f.Addr) == 0 {
		n.own = append(n.own, c.Addrs...)
	}
	n.own = append(n.own, netip.PrefixFrom(key.Addr(), wireguard.Network.Bits()))
	if f.Describe {
		lan, err := pipe.New(&pipe.Config{MTU: c.TunnelMTU()})
		if err != nil {
			return nil, err
		}
		return opened(lan.PortWithMAC(key.MAC()))
	}
	unlock, err := lockFile(f.Secure)
	if err != nil {
		return nil, fmt.Errorf("--secure: %w", err)
	}
	if f.underTunnel() {
		if c.Under, err = f.Link.open(nil, key.MAC(), 0); err != nil {
			return nil, errors.Join(err, unlock())
		}
	}
	l, err := wireguard.Open(&c.Config)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("--secure: %w", err), unlock())
	}
	n.Tunnel = l
	return &lockedLink{l, unlock}, nil
}

// underTunnel reports whether --link carries the encrypted packets.
func (f *Flags) underTunnel() bool { return f.Link.Medium != "pipe" && f.Link.Medium != "" }

// lockedLink is a tunnel that holds the lock of its key.
type lockedLink struct {
	*wireguard.Link
	unlock func() error
}

// Close implements link.Link.
func (l *lockedLink) Close() error { return errors.Join(l.Link.Close(), l.unlock()) }
