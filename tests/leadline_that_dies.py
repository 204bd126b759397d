"""A leadline that starts the given command, says so, and waits: to be killed. Arguments: STATE_DIR PORT COMMAND..."""

import sys
import time
from pathlib import Path

from leadline.config import Deploy
from leadline.process import ProcessSupervisor
from leadline.records import Command

state, port, *argv = sys.argv[1:]
supervisor = ProcessSupervisor(Command(argv=tuple(argv)), Path(state), Deploy(stop_grace_s=1, free_timeout_s=20), port=int(port) or None)
launch = supervisor.start(argv)
print(launch.launch_id, launch.pid, supervisor._keeper_pid(launch.launch_id), flush=True)
time.sleep(300)
