// Package nvme is `softrnic nvme`: NVMe over Fabrics with the RDMA transport.
package nvme

// Command has the commands of NVMe over Fabrics.
type Command struct {
	Serve    serve    `cmd:"" help:"Run a target: export files or memory as block devices to hosts, such as Linux."`
	Discover discover `cmd:"" help:"List the subsystems of a target."`
	Identify identify `cmd:"" help:"Show the controller and the namespaces of a subsystem."`
	Read     read     `cmd:"" help:"Read a namespace into a file, or to stdout."`
	Write    write    `cmd:"" help:"Write a file, or stdin, to a namespace."`
	Bench    bench    `cmd:"" help:"Measure reads or writes of a namespace."`
}
