// Command softrnic is a software RDMA network interface in one program. It runs RDMA inside a
// process, on a TAP interface, or on a network interface, without a kernel module.
package main

import (
	"context"
	"os"
	"os/signal"
	"reflect"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/softrnic/softrnic/cmd/internal/arguments"
	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/dropin"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/cdi"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/demo"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/devinfo"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/fabric"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/fault"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/hub"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/impair"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/key"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/kubernetes"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/mckey"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/nc"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/nfs"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/nvme"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/peers"
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
	Demo       demo.Command       `cmd:"" help:"Run every RDMA operation between two nodes in this process, and verify the data. Start here."`
	Devinfo    devinfo.Command    `cmd:"" help:"Describe a node's RDMA device and its GIDs, like ibv_devinfo."`
	Pingpong   pingpong.Command   `cmd:"" help:"Send messages back and forth between two nodes; either side may be the real ibv_*_pingpong."`
	Rping      rping.Command      `cmd:"" help:"Ping over an rdma_cm connection with RDMA READ and WRITE; either side may be the real rping."`
	Mckey      mckey.Command      `cmd:"" help:"Send to a multicast group, or receive from it; other members may be the real mckey."`
	Nc         nc.Command         `cmd:"" help:"Pipe bytes over RDMA, like nc; either side may be a program that uses rsockets."`
	Proxy      proxy.Command      `cmd:"" help:"Forward connections between TCP and RDMA, and between RoCEv2 and iWARP, optionally with TLS."`
	Nvme       nvme.Command       `cmd:"" help:"Export files as block devices to Linux and other hosts, by NVMe over Fabrics."`
	Nfs        nfs.Command        `cmd:"" help:"Export a directory by NFS over RDMA, to Linux machines with rdma_rxe, siw or RDMA hardware."`
	Perf       perf.Command       `cmd:"" help:"Measure bandwidth, latency or message rate between two nodes, like ib_write_bw and others of perftest."`
	Serve      serve.Command      `cmd:"" help:"Run a node that answers ping, ibv_rc_pingpong and rping until interrupted."`
	Switch     ethswitch.Command  `cmd:"" help:"Run an Ethernet switch between virtual machines, nodes and TAP interfaces; only TAP needs privileges."`
	Conform    conform.Command    `cmd:"" help:"Test an RDMA device against the protocol specifications, statement by statement."`
	Trace      trace.Command      `cmd:"" help:"Analyse the RDMA connections of a capture or an interface: report errors and draw sequence diagrams."`
	Top        top.Command        `cmd:"" help:"Show the activity of the queue pairs of running nodes, like top."`
	Key        key.Command        `cmd:"" help:"Make a private key for --secure, or print its public key."`
	Peers      peers.Command      `cmd:"" help:"Show the peers of running nodes with --secure: handshakes, endpoints and bytes."`
	Impair     impair.Command     `cmd:"" help:"Impair the network of a running node: loss, delay, reordering and more; or end that."`
	Fault      fault.Command      `cmd:"" help:"Make the RDMA device of a running program fail on purpose: calls, completions, events, the port. Or sweep a program."`
	Fabric     fabric.Command     `cmd:"" help:"Run RDMA workloads on a simulated network of hosts and switches, in virtual time."`
	Hub        hub.Command        `cmd:"" help:"Share this machine's addresses between nodes with --link kernel --shared, which start the hub automatically."`
	Run        run.Command        `cmd:"" help:"Run a program that was written for libibverbs or librdmacm, such as ib_write_bw, on SoftRNIC."`
	Cdi        cdi.Command        `cmd:"" help:"Write the specification by which podman, Docker, containerd and CRI-O give a container devices."`
	Kubernetes kubernetes.Command `cmd:"" help:"Run a device plugin of Kubernetes, with which pods get RDMA devices."`

	Version kong.VersionFlag `help:"Print the version and exit."`
}

const overview = `SoftRNIC is an RDMA network card in software, wholly in user space.

A node is one host with an RDMA device. It has an Ethernet link (--link) and IP addresses (--addr), and speaks RoCEv2 and
iWARP. Its peers are other nodes, and machines with RDMA hardware or Linux's rdma_rxe or siw.

Examples:

  softrnic demo
        run all RDMA operations: needs no privileges and no setup

  softrnic perf write bw --loopback
        measure bandwidth inside this process

  softrnic pingpong rc --link tap:rnic0,bridge=br0 --addr 10.0.0.9/24
        wait for a Linux machine that runs: ibv_rc_pingpong -d rxe0 -g 1 10.0.0.9

  softrnic pingpong rc --link packet:eth0 --addr 10.0.0.9/24 10.0.0.1
        connect to an ibv_rc_pingpong that waits on 10.0.0.1`

func main() {
	if file, err := os.Executable(); err == nil {
		_, _ = dropin.EnterContainer(file) // sets a variable, which does not fail
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process
	os.Exit(runCommandLine(ctx, os.Args[1:], &cli.Env{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}))
}

func runCommandLine(ctx context.Context, args []string, e *cli.Env) int {
	return arguments.Run(ctx, args, e, grammar(args), overview)
}

// grammar returns a struct with the command that args name, or with all. The description of all
// commands, which kong makes first, takes longer than some commands run.
func grammar(args []string) any {
	all, version := reflect.TypeFor[commands](), reflect.TypeFor[kong.VersionFlag]()
	for i := range all.NumField() {
		f := all.Field(i)
		if len(args) > 0 && f.Type != version && strings.ToLower(f.Name) == args[0] {
			flag, _ := all.FieldByName("Version")
			return reflect.New(reflect.StructOf([]reflect.StructField{f, flag})).Interface()
		}
	}
	return new(commands)
}
