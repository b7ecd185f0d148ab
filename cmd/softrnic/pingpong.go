package main

// pingpongCmd groups the ping-pongs by transport service.
type pingpongCmd struct {
	RC pingpongRC `cmd:"" name:"rc" help:"Over a reliable connection, like ibv_rc_pingpong."`
}
