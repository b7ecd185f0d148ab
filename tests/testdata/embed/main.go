// Command embed does the first things that a program does with SoftRNIC: it opens devices on links
// of memory and on the kernel's sockets, sends a message, writes and reads remote memory, and
// serves HTTP over RDMA. TestEmbed compiles it in a module of its own.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"syscall"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/kernel"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

func main() {
	ctx := context.Background()
	var lan pipe.Switch
	server, client := open(&lan, "10.0.0.1/24"), open(&lan, "10.0.0.2/24")
	query(server)
	transfer(ctx, server, client)
	serveHTTP(server, client)
	onSockets()
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// open opens a device on an in-process link.
func open(lan *pipe.Switch, addr string) *verbs.Device {
	host, err := netstack.New(lan.Port(), &netstack.Config{Addrs: []string{addr}})
	check(err)
	dev, err := rdmatransport.Open(host, nil)
	check(err)
	return dev
}

func query(dev *verbs.Device) {
	gid, err := dev.QueryGID(1, 1) // index 0 is the link-local address
	check(err)
	fmt.Println("device", gid.GID.Addr())
}

// transfer has the server tell the client of a region, which the client writes and reads.
func transfer(ctx context.Context, server, client *verbs.Device) {
	l, err := rdmacm.Listen(server, ":7471", nil)
	check(err)
	done, wrote := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept(ctx)
		check(err)
		region := make([]byte, 64)
		mr, err := c.PD().RegMR(region, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead)
		check(err)
		note, err := c.PD().RegMR(binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(nil, mr.Addr()), mr.RKey()), 0)
		check(err)
		check(c.QP().PostSend(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled, SGList: []verbs.SGE{note.SGE(0, 12)}}))
		wait(ctx, c.SendCQ())
		<-wrote
		fmt.Printf("server has %q\n", region[:5])
		check(c.Close())
	}()
	var mr *verbs.MR
	c, err := rdmacm.Dial(ctx, client, "10.0.0.1:7471", &rdmacm.Config{Prepare: func(c *rdmacm.Conn) (err error) {
		if mr, err = c.PD().RegMR(make([]byte, 64), verbs.AccessLocalWrite); err != nil {
			return err
		}
		return c.QP().PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{mr.SGE(0, 12)}})
	}})
	check(err)
	wait(ctx, c.RecvCQ())
	addr, key := binary.BigEndian.Uint64(mr.Buf()), binary.BigEndian.Uint32(mr.Buf()[8:])
	copy(mr.Buf()[16:], "hello")
	check(c.QP().PostSend(&verbs.SendWR{Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled,
		SGList: []verbs.SGE{mr.SGE(16, 5)}, RemoteAddr: addr, RKey: key}))
	wait(ctx, c.SendCQ())
	check(c.QP().PostSend(&verbs.SendWR{Opcode: verbs.RDMARead, Flags: verbs.SendSignaled,
		SGList: []verbs.SGE{mr.SGE(32, 5)}, RemoteAddr: addr, RKey: key}))
	wait(ctx, c.SendCQ())
	fmt.Printf("client reads %q\n", mr.Buf()[32:37])
	close(wrote)
	<-done
	check(c.Close())
	check(l.Close())
}

// wait waits for a completion.
func wait(ctx context.Context, cq *verbs.CQ) {
	var wc [1]verbs.WC
	_, err := cq.Wait(ctx, wc[:])
	check(err)
	check(wc[0].Err())
}

func serveHTTP(server, client *verbs.Device) {
	l, err := rsocket.Listen(server, ":80", nil)
	check(err)
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "over RDMA") }))
	c := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			return rsocket.Dial(ctx, client, addr, nil)
		},
	}}
	answer, err := c.Get("http://10.0.0.1/")
	check(err)
	text, err := io.ReadAll(answer.Body)
	check(err)
	fmt.Println("http", string(text))
}

// onSockets opens a device on the kernel's sockets, at a free address of the loopback.
func onSockets() {
	for i := range 200 {
		host, err := kernel.New(&kernel.Config{Addrs: []string{fmt.Sprintf("127.77.3.%d", i+1)}})
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		check(err)
		dev, err := rdmatransport.Open(host, nil)
		check(err)
		fmt.Println("on", host.NICs()[0].Name())
		check(dev.Close())
		check(host.Close())
		return
	}
	log.Fatal("no free address")
}
