//go:build !linux

package hub

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"syscall"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/stack"
)

func namespace() string { return "0" }

var errOther = fmt.Errorf("hubs need Linux and this is %s: only one process at a time can have an address: %w", runtime.GOOS,
	syscall.EOPNOTSUPP)

// Serve works on Linux only.
func Serve(context.Context, Config) error { return errOther }

// Client works on Linux only.
type Client struct{}

// Join works on Linux only.
func Join(ClientConfig) (*Client, error) { return nil, errOther }

func (*Client) Numbers() stack.Numbers                                { return stack.Numbers{} }
func (*Client) Up() bool                                              { return false }
func (*Client) AddAddr(netip.Addr, string) error                      { return errOther }
func (*Client) AddSourceSockets(netip.Addr, ...syscall.RawConn) error { return errOther }
func (*Client) DropAddr(netip.Addr)                                   {}
func (*Client) Serve(stack.Service) error                             { return errOther }
func (*Client) EndServe(stack.Service)                                {}
func (*Client) Wait()                                                 {}
func (*Client) EndPoll()                                              {}
func (*Client) Poll(bool) bool                                        { return false }
func (*Client) Mixed(netip.Addr, netip.AddrPort)                      {}
func (*Client) Run()                                                  {}
func (*Client) Close()                                                {}

// Route works on Linux only.
type Route struct{}

func (*Client) Route(src, dst netip.Addr, qpn uint32) *Route { return nil }
func (*Route) Leave()                                        {}
func (*Route) Reserve(int) link.Reservation                  { return link.Reservation{} }
func (*Route) Send(*Arrival, *Writer) bool                   { return false }
func (*Route) Backlog() int                                  { return 0 }
func (*Route) HasRings() bool                                { return false }

// Running returns false: hubs need Linux.
func Running(string) bool { return false }
