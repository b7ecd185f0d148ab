// Package nvme is `softrnic nvme`: NVMe over Fabrics with the RDMA transport.
package nvme

// Command has the commands of NVMe over Fabrics.
type Command struct {
	Serve serve `cmd:"" help:"Be a target: show files or memory to hosts, such as Linux, as block devices."`
}
