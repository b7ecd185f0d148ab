// Command softrnic is a software RDMA network interface in one program. It runs RDMA inside a
// process, on a TAP interface, or on a network interface, without a kernel module.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/demo"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/devinfo"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/hub"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/mckey"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/nc"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/nfs"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/nvme"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/perf"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/pingpong"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/proxy"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/rping"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/run"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/serve"
	ethswitch "github.com/softrnic/softrnic/cmd/softrnic/internal/switch"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/top"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/trace"
)

// commands is the command line.
type commands struct {
	Demo     demo.Command      `cmd:"" help:"Run every RDMA operation between two nodes in this process, and verify the data. Start here."`
	Devinfo  devinfo.Command   `cmd:"" help:"Describe a node's RDMA device and its GIDs, like ibv_devinfo."`
	Pingpong pingpong.Command  `cmd:"" help:"Bounce messages between two nodes, either of which may be the real ibv_*_pingpong."`
	Rping    rping.Command     `cmd:"" help:"Ping over an rdma_cm connection with RDMA READ and WRITE; either side may be the real rping."`
	Mckey    mckey.Command     `cmd:"" help:"Send to a multicast group, or receive from it; others in it may be the real mckey."`
	Nc       nc.Command        `cmd:"" help:"Pipe bytes over RDMA, like nc; either side may be a program that uses rsockets."`
	Proxy    proxy.Command     `cmd:"" help:"Forward connections between TCP and RDMA, and between RoCEv2 and iWARP, optionally with TLS."`
	Nvme     nvme.Command      `cmd:"" help:"Storage: show files to Linux and other hosts as block devices, by NVMe over Fabrics."`
	Nfs      nfs.Command       `cmd:"" help:"Export a directory by NFS over RDMA, to Linux machines with rdma_rxe, siw or RDMA hardware."`
	Perf     perf.Command      `cmd:"" help:"Measure bandwidth, latency or message rate between two nodes, like perftest's ib_write_bw and its kin."`
	Serve    serve.Command     `cmd:"" help:"Be a lab node that answers ping, ibv_rc_pingpong and rping until stopped."`
	Switch   ethswitch.Command `cmd:"" help:"Be an Ethernet switch between virtual machines, nodes and TAP interfaces; without TAP it needs no privileges."`
	Conform  conform.Command   `cmd:"" help:"Test, statement by statement, whether an RDMA device keeps to the protocol."`
	Trace    trace.Command     `cmd:"" help:"Analyse the RDMA connections of a capture or an interface: report errors and draw sequence diagrams."`
	Top      top.Command       `cmd:"" help:"Show what the queue pairs of running nodes do, like top."`
	Hub      hub.Command       `cmd:"" help:"Share this machine's addresses between nodes of --link kernel --shared, which start it by themselves."`
	Run      run.Command       `cmd:"" help:"Run a program that was written for libibverbs or librdmacm, such as ib_write_bw, on SoftRNIC."`

	Version kong.VersionFlag `help:"Print the version and exit."`
}

const overview = `SoftRNIC is an RDMA network card in software, wholly in user space.

A node is one host with an RDMA device: it has an Ethernet link (--link), IP addresses (--addr), and speaks RoCEv2,
so other nodes and Linux machines with RDMA hardware or rdma_rxe are its peers.

Examples:

  softrnic demo
        see RDMA work: no privileges, nothing to set up

  softrnic perf write bw --loopback
        how fast it is inside this process

  softrnic pingpong rc --link tap:rnic0,bridge=br0 --addr 10.0.0.9/24
        wait for a Linux machine's: ibv_rc_pingpong -d rxe0 -g 1 10.0.0.9

  softrnic pingpong rc --link packet:eth0 --addr 10.0.0.9/24 10.0.0.1
        play with the ibv_rc_pingpong that waits on 10.0.0.1`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process
	os.Exit(runCommandLine(ctx, os.Args[1:], &cli.Env{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}))
}

func runCommandLine(ctx context.Context, args []string, e *cli.Env) int {
	return cli.Run(ctx, args, e, new(commands), overview)
}
