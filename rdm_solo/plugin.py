"""usage: rdm-solo plugin SCRIPT ...

Run one of solo-learn's own scripts and add the methods rdm_simsiam, rdm_byol and symsimsiam:

    rdm-solo plugin solo-learn/main_pretrain.py --config-path CONFIGS --config-name rdm_simsiam.yaml

SCRIPT is the path of the script; it receives all further arguments. Hydra reads CONFIGS from the
script's folder. docs/frameworks.md says what rdm_simsiam.yaml contains. The methods are also
registered in processes that Lightning starts.
"""

import os
import sys
from pathlib import Path

from rdm_solo import register_methods
from rdm_solo.cli.terminal import errors_without_traceback
from rdm_solo.ground.errors import UserError
from rdm_solo.ground.packages import TRAINING, check_installed

# Lightning starts the other processes with this module's name and the arguments that follow it.
SCRIPT_VARIABLE = "RDM_SOLO_SCRIPT"


def main() -> None:
    """Register the methods, then run the script."""
    if SCRIPT_VARIABLE not in os.environ:
        if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
            print(__doc__)
            raise SystemExit(0 if len(sys.argv) > 1 else 2)
        os.environ[SCRIPT_VARIABLE] = str(Path(sys.argv.pop(1)).resolve())
    script = Path(os.environ[SCRIPT_VARIABLE])
    with errors_without_traceback():
        if not script.is_file():
            raise UserError(f"{script} is not a file; pass solo-learn's main_pretrain.py.")
        check_installed("this command", *TRAINING)
        register_methods()
    sys.path.insert(0, str(script.parent))
    sys.argv[0] = str(script)
    # Not runpy: Lightning starts the other processes with the __spec__ of this __main__.
    exec(compile(script.read_bytes(), script, "exec"), vars(sys.modules["__main__"]))


if __name__ == "__main__":
    main()
