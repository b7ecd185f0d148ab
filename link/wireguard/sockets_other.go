//go:build !linux

package wireguard

import "golang.zx2c4.com/wireguard/conn"

// newSockets returns UDP sockets of this machine.
func newSockets(int) conn.Bind { return conn.NewDefaultBind() }
